"""Shapes of the training parts of the UEA and UCR archives, as their papers and sites give them.

Where series differ in length, UEA has that of the longest; the 11 such sets of UCR are left out.
"""

# Series, channels and steps.
UEA = {
    "ArticularyWordRecognition": (275, 9, 144), "AtrialFibrillation": (15, 2, 640), "BasicMotions": (40, 6, 100),
    "CharacterTrajectories": (1422, 3, 182), "Cricket": (108, 6, 1197), "DuckDuckGeese": (50, 1345, 270),
    "EigenWorms": (128, 6, 17984), "Epilepsy": (137, 3, 206), "ERing": (30, 4, 65),
    "EthanolConcentration": (261, 3, 1751), "FaceDetection": (5890, 144, 62), "FingerMovements": (316, 28, 50),
    "HandMovementDirection": (160, 10, 400), "Handwriting": (150, 3, 152), "Heartbeat": (204, 61, 405),
    "InsectWingbeat": (30000, 200, 30), "JapaneseVowels": (270, 12, 29), "Libras": (180, 2, 45),
    "LSST": (2459, 6, 36), "MotorImagery": (278, 64, 3000), "NATOPS": (180, 24, 51), "PEMS-SF": (267, 963, 144),
    "PenDigits": (7494, 2, 8), "PhonemeSpectra": (3315, 11, 217), "RacketSports": (151, 6, 30),
    "SelfRegulationSCP1": (268, 6, 896), "SelfRegulationSCP2": (200, 7, 1152), "SpokenArabicDigits": (6599, 13, 93),
    "StandWalkJump": (12, 4, 2500), "UWaveGestureLibrary": (120, 3, 315),
}  # fmt: skip
# Series and steps.
UCR = {
    "Adiac": (390, 176), "ArrowHead": (36, 251), "Beef": (30, 470), "BeetleFly": (20, 512), "BirdChicken": (20, 512),
    "Car": (60, 577), "CBF": (30, 128), "ChlorineConcentration": (467, 166), "CinCECGTorso": (40, 1639),
    "Coffee": (28, 286), "Computers": (250, 720), "CricketX": (390, 300), "CricketY": (390, 300),
    "CricketZ": (390, 300), "DiatomSizeReduction": (16, 345), "DistalPhalanxOutlineAgeGroup": (400, 80),
    "DistalPhalanxOutlineCorrect": (600, 80), "DistalPhalanxTW": (400, 80), "Earthquakes": (322, 512),
    "ECG200": (100, 96), "ECG5000": (500, 140), "ECGFiveDays": (23, 136), "ElectricDevices": (8926, 96),
    "FaceAll": (560, 131), "FaceFour": (24, 350), "FacesUCR": (200, 131), "FiftyWords": (450, 270),
    "Fish": (175, 463), "FordA": (3601, 500), "FordB": (3636, 500), "GunPoint": (50, 150), "Ham": (109, 431),
    "HandOutlines": (1000, 2709), "Haptics": (155, 1092), "Herring": (64, 512), "InlineSkate": (100, 1882),
    "InsectWingbeatSound": (220, 256), "ItalyPowerDemand": (67, 24), "LargeKitchenAppliances": (375, 720),
    "Lightning2": (60, 637), "Lightning7": (70, 319), "Mallat": (55, 1024), "Meat": (60, 448),
    "MedicalImages": (381, 99), "MiddlePhalanxOutlineAgeGroup": (400, 80), "MiddlePhalanxOutlineCorrect": (600, 80),
    "MiddlePhalanxTW": (399, 80), "MoteStrain": (20, 84), "NonInvasiveFetalECGThorax1": (1800, 750),
    "NonInvasiveFetalECGThorax2": (1800, 750), "OliveOil": (30, 570), "OSULeaf": (200, 427),
    "PhalangesOutlinesCorrect": (1800, 80), "Phoneme": (214, 1024), "Plane": (105, 144),
    "ProximalPhalanxOutlineAgeGroup": (400, 80), "ProximalPhalanxOutlineCorrect": (600, 80),
    "ProximalPhalanxTW": (400, 80), "RefrigerationDevices": (375, 720), "ScreenType": (375, 720),
    "ShapeletSim": (20, 500), "ShapesAll": (600, 512), "SmallKitchenAppliances": (375, 720),
    "SonyAIBORobotSurface1": (20, 70), "SonyAIBORobotSurface2": (27, 65), "StarLightCurves": (1000, 1024),
    "Strawberry": (613, 235), "SwedishLeaf": (500, 128), "Symbols": (25, 398), "SyntheticControl": (300, 60),
    "ToeSegmentation1": (40, 277), "ToeSegmentation2": (36, 343), "Trace": (100, 275), "TwoLeadECG": (23, 82),
    "TwoPatterns": (1000, 128), "UWaveGestureLibraryAll": (896, 945), "UWaveGestureLibraryX": (896, 315),
    "UWaveGestureLibraryY": (896, 315), "UWaveGestureLibraryZ": (896, 315), "Wafer": (1000, 152), "Wine": (57, 234),
    "WordSynonyms": (267, 270), "Worms": (181, 900), "WormsTwoClass": (181, 900), "Yoga": (300, 426),
    "ACSF1": (100, 1460), "BME": (30, 128), "Chinatown": (20, 24), "Crop": (7200, 46), "DodgerLoopDay": (78, 288),
    "DodgerLoopGame": (20, 288), "DodgerLoopWeekend": (20, 288), "EOGHorizontalSignal": (362, 1250),
    "EOGVerticalSignal": (362, 1250), "EthanolLevel": (504, 1751), "FreezerRegularTrain": (150, 301),
    "FreezerSmallTrain": (28, 301), "Fungi": (18, 201), "GunPointAgeSpan": (135, 150),
    "GunPointMaleVersusFemale": (135, 150), "GunPointOldVersusYoung": (136, 150), "HouseTwenty": (40, 2000),
    "InsectEPGRegularTrain": (62, 601), "InsectEPGSmallTrain": (17, 601), "MelbournePedestrian": (1194, 24),
    "MixedShapesRegularTrain": (500, 1024), "MixedShapesSmallTrain": (100, 1024), "PigAirwayPressure": (104, 2000),
    "PigArtPressure": (104, 2000), "PigCVP": (104, 2000), "PowerCons": (180, 144), "Rock": (20, 2844),
    "SemgHandGenderCh2": (300, 1500), "SemgHandMovementCh2": (450, 1500), "SemgHandSubjectCh2": (450, 1500),
    "SmoothSubspace": (150, 15), "UMD": (36, 150),
}  # fmt: skip
